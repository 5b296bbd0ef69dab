#!/bin/sh
# Lists the Debian packages where it runs: name, version, architecture, and the licences that the package's copyright file
# names, separated by tabs. `requirements/sbom.py` takes the list of an image:
#   docker run --rm --interactive --entrypoint sh IMAGE -s <requirements/debian_packages.sh
set -eu
dpkg-query --show --showformat='${Package} ${Version} ${Architecture} ${db:Status-Status}\n' |
    while read -r name version architecture status; do
        [ "$status" = installed ] || continue
        # Fields `License:`, or where there are none the texts in common-licenses that the file refers to.
        licenses=$(sed -n -e 's/^License:[[:blank:]]*\([^,[:blank:]][^,]*\).*/\1/p' -e 's|.*/usr/share/common-licenses/\([A-Za-z0-9.+-]*[A-Za-z0-9+]\).*|\1|p' \
            "/usr/share/doc/$name/copyright" 2>/dev/null | tr -s "[:blank:]" " " | sort -u | tr "\n" "," || true)
        printf '%s\t%s\t%s\t%s\n' "$name" "$version" "$architecture" "${licenses%,}"
    done
