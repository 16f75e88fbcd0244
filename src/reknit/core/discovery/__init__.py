"""Where other nodes are, and which hosts shall take part.

source      what the user named: a DNS name, a script, a file
host_list   the lines that a script prints or a file holds
reading     one reading of a script or a file
names       host names to addresses
watch       a list that is read again and again; the last good one stays
"""
