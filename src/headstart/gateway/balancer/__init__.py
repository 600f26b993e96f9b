"""The load balancer: several servers of one model behind one address."""
