"""Programs in front of servers: the router between models and the load balancer."""
