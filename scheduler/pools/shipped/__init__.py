"""The pool plugins that come with the scheduler, one module each."""
