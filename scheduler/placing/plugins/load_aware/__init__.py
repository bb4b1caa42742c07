"""`LoadAwareScheduling`: nodes are judged by what is measured on them, and by an estimate of what is not measured yet."""
