"""The framework extender: transformers, reservations, error filters, diagnosis. Source: seed 002."""
