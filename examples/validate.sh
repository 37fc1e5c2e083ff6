# Is this machine as fast as it should be? Measures, keeps what was found as the site's references,
# and measures again: what differs now is the machine's own unrest, or something has changed.
#
#   $ sh examples/validate.sh
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Without --models, HEP-CNN is trained as well. 125 says that a line is slow: it is in the report.
measure() {
    fairlead validate --quick --models none --ranks 1,2 -o "$folder/$1" $2 || [ $? -eq 125 ]
}
measure first "--save-reference --save-slow"
measure second ""

# What changed between the two, line by line, and whether that can be chance.
fairlead report --compare last~1 last
