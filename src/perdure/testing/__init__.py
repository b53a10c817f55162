"""What tests of durable code need; nothing here is imported by the library itself."""
