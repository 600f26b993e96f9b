"""What stands in front of servers: the router between models, the load balancer."""
