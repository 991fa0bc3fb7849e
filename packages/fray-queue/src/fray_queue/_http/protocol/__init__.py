"""What client and server agree on: records on the wire, and limits."""
