"""HTTP routes: parse the request, call the use case, render the response. No logic here."""
