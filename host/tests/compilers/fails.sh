#!/bin/sh
# Stands for a compiler that refuses a component.
echo no >&2
echo not today >&2
exit 1
