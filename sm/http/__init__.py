"""HTTP as both planes speak it: messages, media types, request ids, responses and errors."""
