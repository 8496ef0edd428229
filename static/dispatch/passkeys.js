// Show on the page that the browser did not use a passkey: canceled, unknown, or not supported.
document.addEventListener('allauth.error', (event) => {
  event.preventDefault()
  const problem = document.getElementById('passkey-problem')
  if (problem) problem.hidden = false
})
