"""What collection costs: reading a page, scraping many of them, filling histories."""
