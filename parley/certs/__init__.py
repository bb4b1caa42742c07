"""`parley certs`: certificates for development, and for installations without an authority of their own."""
