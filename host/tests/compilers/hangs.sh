#!/bin/sh
# Stands for a compiler that loops.
exec sleep 60
