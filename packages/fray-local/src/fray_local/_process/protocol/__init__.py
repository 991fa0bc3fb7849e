"""What both sides know: messages, and values as they travel."""
