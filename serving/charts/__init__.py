"""Deployments and traffic as pictures and words: view models and plotly figures."""
