"""What the three parties exchange: values, versions, messages, codec. No I/O."""
