#!/bin/sh
exec cat /dev/zero
