"use strict";
// "Use my location" button: get the position from the browser, then submit the form.
(() => {
  const form = document.getElementById("here");
  if (!form || !navigator.geolocation) return;
  form.hidden = false;
  const button = form.querySelector("button"), status = form.querySelector("[role=status]");
  button.addEventListener("click", () => {
    button.disabled = true;
    status.textContent = status.dataset.waiting;
    navigator.geolocation.getCurrentPosition(
      ({ coords }) => {
        form.elements.lat.value = coords.latitude;
        form.elements.lng.value = coords.longitude;
        form.submit();
      },
      () => {
        button.disabled = false;
        status.textContent = status.dataset.refused;
      },
      { enableHighAccuracy: true, timeout: 15000, maximumAge: 30000 },
    );
  });
})();
