# Every name of a list, of all branches, as stub.h wants it.
/^[a-z]/ { print ($2 == "data" ? "DATA" : $2 == "succeeds" ? "SUCCEEDS" : "FUNCTION") "(" $1 ")" }
