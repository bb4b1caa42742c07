"""The agent put together: its runners, callbacks, pages, settings and policies."""
