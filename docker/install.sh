# What the Dockerfile does in each party's stage, with the environment /opt/maskedlark (PIP_PYTHON).
#
#   install.sh packages EXTRA,...   install the packages that pyproject.toml names, without their tests
#   install.sh party COMMAND        install this folder, without the other parties' commands, and write the bill of materials
set -eu
environment=/opt/maskedlark
case $1 in
packages)
    python requirements.py "$2" > needed.txt
    pip install --constraint constraints.txt --requirement needed.txt
    find "$environment/lib" -type d \( -name tests -o -path '*/onnx/backend/test' \) -prune -exec rm -r {} + ;;
party)
    pip install --no-deps .
    for command in helper adserver browser-sim; do [ "$command" = "$2" ] || rm -f "$environment/bin/$command"; done
    python bill_of_materials.py > "$environment/bill-of-materials.cdx.json" ;;
esac
