#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the Debian packages and looks at what a Debian user expects of them. Building takes a minute: it is of the soak.
#     tests/packages.bash SOURCE FOLDER_TO_BUILD_IN
set -euo pipefail
source=$1 build=$2
if ! command -v dpkg-deb >/dev/null || ! command -v dpkg-shlibdeps >/dev/null; then
	echo "no Debian here"
	exit 77
fi
fail() { echo "$*" >&2; exit 1; }

cmake -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_INSTALL_PREFIX=/usr \
	-DCMAKE_SKIP_INSTALL_RPATH=ON -DFERRY_MPI=OFF -DFERRY_DEB=ON \
	-DFERRY_DEB_MAINTAINER="A. Name <a.name@example.org>" >/dev/null
cmake --build "$build" -j "$(nproc)" >/dev/null
rm -f "$build"/*.deb
(cd "$build" && cpack >/dev/null)
for package in libferry0 libferry-dev ferry-tools; do
	deb=$(echo "$build/${package}"_*.deb)
	list=$(dpkg-deb --contents "$deb" | awk '{ print $6 }')
	[[ $(dpkg-deb --field "$deb" Maintainer) == "A. Name <a.name@example.org>" ]] || fail "$package: maintainer"
	for file in copyright changelog.gz changelog.Debian.gz; do
		grep -qx "./usr/share/doc/$package/$file" <<<"$list" || fail "$package has no $file"
	done
	if pages=$(grep -E '/share/man/man[1-9]/.*[1-9]$' <<<"$list"); then
		fail "$package: man pages that are not compressed: $pages"
	fi
	! grep -q '\.pml$' <<<"$list" || fail "$package brings models"
done
deb=$(echo "$build"/libferry0_*.deb)
[[ $(dpkg-deb --info "$deb" triggers) == "activate-noawait ldconfig" ]] || fail "libferry0: no trigger"
deb=$(echo "$build"/ferry-tools_*.deb)
depends=$(dpkg-deb --field "$deb" Depends)
[[ $depends == *python3* && $depends == *libferry0* ]] || fail "ferry-tools depends on $depends"
dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/share/man/man1/ferryrun.1.gz | gunzip | grep -q '^.TH FERRYRUN' ||
	fail "ferry-tools: no page of ferryrun"
dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/share/doc/ferry-tools/changelog.Debian.gz | gunzip |
	grep -qE '^ -- A\. Name <a\.name@example\.org>  [A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} .* \+0000$' ||
	fail "ferry-tools: its changelog is not signed"
