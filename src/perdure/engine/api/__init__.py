"""What programs use: decorators, calls in a body, App, Client, handles and queries."""
