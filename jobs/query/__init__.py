"""Whole queries with every shuffle exchange durable."""
