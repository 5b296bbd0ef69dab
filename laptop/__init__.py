"""All of Weir on one machine: the servers, the applications and the dashboard, supervised."""
