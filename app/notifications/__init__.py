"""Messages about runs to wherever the operator reads them: chat, mail, a program of their own.

addresses.py reads where to, words.py says what, sender.py sends it while a server is up.
"""
