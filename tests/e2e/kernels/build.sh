#!/bin/sh
# Rebuilds the modules from their sources with glslc; run it here after a change and commit both.
set -e
cd "$(dirname "$0")"
for source in *.comp; do
    glslc --target-env=vulkan1.2 "$source" -o "${source%.comp}.spv"
done
