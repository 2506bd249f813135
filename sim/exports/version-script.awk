# The linker's version script for one branch: awk -v branch=R550 -f version-script.awk LIST
/^\[/ { if (reached) exit; reached = $1 == "[" branch "]"; next }
/^-/ { delete names[substr($1, 2)]; next }
/^[a-z]/ { names[$1] }
END {
    print "{ global:"
    for (name in names) print name ";"
    print "local: *; };"
}
