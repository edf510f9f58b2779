# SPDX-License-Identifier: Apache-2.0
"""Holds JSON against schemas by the package jsonschema: validate.py FOLDER_OF_SCHEMAS SCHEMA=FILE..."""

import json
import pathlib
import sys

from jsonschema import Draft202012Validator

folder = pathlib.Path(sys.argv[1])
for path in folder.glob("*.json"):
    Draft202012Validator.check_schema(json.loads(path.read_text()))
wrong = []
for pair in sys.argv[2:]:
    name, file = pair.split("=", 1)
    validator = Draft202012Validator(json.loads((folder / (name + ".json")).read_text()))
    value = json.loads(pathlib.Path(file).read_text())
    wrong += ["%s: %s: %s" % (name, error.json_path, error.message[:200]) for error in validator.iter_errors(value)]
if wrong:
    sys.exit("\n".join(wrong[:20]))
