"""What people ask for: deploy, stop, restart, roll back, plan and deploy."""
