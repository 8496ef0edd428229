"use strict";
// The button "I am here": the browser is asked for the position, and the form is sent as any other.
(() => {
  const form = document.getElementById("here");
  if (!form || !navigator.geolocation) return;
  form.hidden = false;
  const button = form.querySelector("button"), told = form.querySelector("[role=status]");
  button.addEventListener("click", () => {
    button.disabled = true;
    told.textContent = "Asking for your position…";
    navigator.geolocation.getCurrentPosition(
      ({ coords }) => {
        form.elements.lat.value = coords.latitude;
        form.elements.lng.value = coords.longitude;
        form.submit();
      },
      () => {
        button.disabled = false;
        told.textContent = "This phone does not tell its position. Enter an address or a ZIP code below.";
      },
      { enableHighAccuracy: true, timeout: 15000, maximumAge: 30000 },
    );
  });
})();
