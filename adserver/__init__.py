"""The ad server: takes in sealed reports, seals datasets at both helpers, runs jobs and steps models. Imports no other party."""
