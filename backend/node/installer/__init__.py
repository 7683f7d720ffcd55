"""Program that makes the Python environment of an engine on a node, from lock files.

    install_environment.py tools JSON --token T    prints what the node has: one line `T{json}`; changes nothing
    install_environment.py install FOLDER          makes the environment

FOLDER/install.json is the request, and the lock files are beside it. FOLDER/progress.json has the step and the number
of installed packages, FOLDER/result.json the reason of a failure. A folder is an environment only when its marker file
says `ready`, which is written last. The program changes no folder without its marker file.

node_programs.py joins the modules into one file. Standard library only, Python >= 3.8.
"""
