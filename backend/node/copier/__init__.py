"""Program of the supervisor: node 0 serves files, and the other nodes copy the files that they lack.

    copy_files.py FOLDER give|take

FOLDER/copy.json holds the server's `address` and `port`, the `token` of every request, and `roots`: folders, each with
the `names` to copy, or null for all. The receiver never changes a file that it has: if any file differs, it reports the
file and copies nothing. A file appears under its name only after all files have arrived and their hashes were compared.
The received part of a file stays for the next try. FOLDER/progress.json has the number of bytes that arrived, and
FOLDER/result.json the reason of a failure.

node_programs.py joins the modules into one file, copy_files.py. Standard library only, Python >= 3.8.
"""
