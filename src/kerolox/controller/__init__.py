"""The controller: who is the master of each broker name, agreed upon by one, three or five."""
