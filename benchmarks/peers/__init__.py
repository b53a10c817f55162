"""The same work with other durable-execution systems for Python, each in an environment of its own."""
