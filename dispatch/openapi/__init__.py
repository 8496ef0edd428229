"""Define enum names and examples of the generated OpenAPI schema."""
