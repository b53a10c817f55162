"""The speed of the engine, as a program that uses it measures it."""
