"""Build the image, and run the services of the compose file from it: `make image-test`."""
