"""Notifications about runs by chat, mail or a program of the operator.

addresses.py reads the addresses, texts.py writes the messages, and sender.py sends them while a server runs.
"""
