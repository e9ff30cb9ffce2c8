#!/bin/sh
# Installs ration from a release: fetches the tarball for this machine, checks it against
# the release's SHA256SUMS, and those by their signature where minisign is installed, and puts it under ~/.local, or /usr/local for root. It needs
# no root, and installs nothing else; for root, in /usr or /usr/local, it makes the user
# ration, which root's agent runs as. Variables:
#
#   RATION_URL      the folder with the release's files: https://... or file://...
#   RATION_VERSION  which version, where the folder has several
#   RATION_PREFIX   another folder than ~/.local or /usr/local
#   RATION_STATIC   1: the static program, as on a system without glibc
#   RATION_KEY      the public key of minisign that must have signed SHA256SUMS, in place of the release's own;
#                   then minisign must be there
#
# All of it is in a function, so that an incomplete download of this script does nothing.
set -eu

# make dist RELEASE_URL=... writes the release's own here.
default_url=
# make dist writes the key of deploy/minisign.pub here.
default_key=

say() { printf '%s\n' "$*"; }

fail() {
	printf 'install.sh: %s\n' "$*" >&2
	exit 1
}

# fetch NAME: into the folder for downloads. Nothing is fetched without TLS, also where a server leads elsewhere.
fetch() {
	case $url in
	file://*) cp "${url#file://}/$1" "$download/$1" ;;
	*)
		if command -v curl >/dev/null; then
			curl --proto '=https' --tlsv1.2 --fail --silent --show-error --location --output "$download/$1" "$url/$1"
		elif wget --version 2>/dev/null | grep -q GNU; then
			fetch_wget "$url/$1" "$download/$1"
		else
			fail "please install curl, or GNU wget: others follow a redirection to a server without TLS"
		fi
		;;
	esac
}

# fetch_wget ADDRESS FILE: wget itself would follow a redirection to http.
fetch_wget() {
	address=$1
	for _ in 1 2 3 4 5 6; do
		case $address in
		https://*) ;;
		*) fail "$1 leads to $address, which is not https; nothing was installed" ;;
		esac
		answer=$(wget --no-verbose --server-response --max-redirect=0 --output-document="$2" "$address" 2>&1) && return
		next=$(printf '%s\n' "$answer" | tr -d '\r' | sed -n 's/^ *[Ll][Oo][Cc][Aa][Tt][Ii][Oo][Nn]: \([^ ]*\)$/\1/p' | tail -n 1)
		case $next in
		'')
			printf '%s\n' "$answer" >&2
			return 1
			;;
		//*) address=https:$next ;;
		/*) address=$(printf '%s\n' "$address" | sed 's,^\(https://[^/]*\).*,\1,')$next ;;
		*) address=$next ;;
		esac
	done
	return 1
}

# must_fetch NAME
must_fetch() { fetch "$1" || fail "cannot fetch $url/$1; nothing was installed"; }

# verify checks who has signed SHA256SUMS, where that can be checked.
verify() {
	key=${RATION_KEY:-$default_key}
	signed=
	[ -n "$key" ] || return 0
	if ! command -v minisign >/dev/null; then
		[ -z "${RATION_KEY:-}" ] || fail "please install minisign: without it RATION_KEY cannot be used; nothing was installed"
		signed=", signature not checked (install minisign)"
		return
	fi
	must_fetch SHA256SUMS.minisig
	minisign -Vqm "$download/SHA256SUMS" -x "$download/SHA256SUMS.minisig" -P "$key" >/dev/null 2>&1 ||
		fail "SHA256SUMS was not signed by the key $key; nothing was installed"
	signed=", signature verified"
}

sha256() {
	if command -v sha256sum >/dev/null; then
		sha256sum "$1"
	elif command -v openssl >/dev/null; then
		openssl dgst -r -sha256 "$1"
	else
		fail "please install sha256sum or openssl: without one the download cannot be checked"
	fi | sed 's/ .*//'
}

# Root's agent reads as this user. The user stays when ration is removed, so that its UID is not
# reused.
make_user() {
	if command -v useradd >/dev/null; then
		useradd --system --user-group --no-create-home --home-dir / --shell /usr/sbin/nologin --comment "Agent of ration" ration
	else
		adduser --system --no-create-home --home / ration
	fi >/dev/null 2>&1 &&
		made_user="user      ration was made: root's agent reads as that" ||
		made_user="user      ration could not be made: root's agent reads as root"
}

main() {
	url=${RATION_URL:-$default_url}
	[ -n "$url" ] || fail "set RATION_URL to the folder with the release's files, like https://example.org/ration/0.2.0 or file:///tmp/dist"
	url=${url%/}
	case $url in
	https://* | file://*) ;;
	*) fail "RATION_URL must begin with https:// or file://, and is $url" ;;
	esac
	[ "$(uname -s)" = Linux ] || fail "ration is for Linux, and this is $(uname -s)"
	case $(uname -m) in
	x86_64) arch=amd64 loader=/lib64/ld-linux-x86-64.so.2 ;;
	aarch64) arch=arm64 loader=/lib/ld-linux-aarch64.so.1 ;;
	*) fail "there is no ration for $(uname -m), only for x86_64 and aarch64" ;;
	esac
	static=
	if [ "${RATION_STATIC:-}" = 1 ] || ! [ -e "$loader" ]; then
		static=-static
	fi
	prefix=${RATION_PREFIX:-}
	if [ -z "$prefix" ] && [ "$(id -u)" = 0 ]; then
		prefix=/usr/local
	elif [ -z "$prefix" ]; then
		prefix=${HOME:?}/.local
	fi

	download=$(mktemp -d)
	trap 'rm -rf "$download"' EXIT
	trap 'exit 130' INT TERM
	must_fetch SHA256SUMS
	verify
	version=${RATION_VERSION:-'[0-9][^ /]*'}
	names=$(sed -n "s,^[0-9a-f]\{64\} [ *]\(ration-$version-linux-$arch$static\.tar\.gz\)\$,\1,p" "$download/SHA256SUMS")
	case $names in
	'') fail "$url has no ration ${RATION_VERSION:+$RATION_VERSION }for $arch${static:+ (static)}; nothing was installed" ;;
	*[[:space:]]*) fail "$url has several: set RATION_VERSION to one of them: $(echo "$names" | sed 's/^ration-\(.*\)-linux-.*/\1/' | tr '\n' ' ')" ;;
	esac
	must_fetch "$names"
	want=$(sed -n "s,^\([0-9a-f]\{64\}\) [ *]$names\$,\1,p" "$download/SHA256SUMS")
	got=$(sha256 "$download/$names")
	[ "$got" = "$want" ] || fail "$names is not what the release has: its SHA-256 is $got, and SHA256SUMS says $want; nothing was installed"

	mkdir "$download/tree"
	tar -C "$download/tree" -xzf "$download/$names" || fail "cannot unpack $names; nothing was installed"
	tree=$(echo "$download"/tree/*)
	"$tree/bin/ration" version >/dev/null || fail "$names does not run on this machine; nothing was installed (RATION_STATIC=1 installs a program that needs no C library)"

	# Remove files that only the older version has. Put each new file in place by a rename, so that
	# a running program keeps its file.
	old=
	if [ -f "$prefix/lib/ration/files" ]; then
		old=$("$prefix/bin/ration" version 2>/dev/null | sed 's/^ration \([^ ]*\).*/\1/' || true)
		while read -r file; do
			[ -e "$tree/$file" ] || rm -f "$prefix/$file"
		done <"$prefix/lib/ration/files"
	fi
	while read -r file; do
		mkdir -p "$prefix/${file%/*}" && cp "$tree/$file" "$prefix/$file.new" && mv -f "$prefix/$file.new" "$prefix/$file" ||
			fail "cannot write $prefix/$file (RATION_PREFIX names another folder); to undo what was done: sh $prefix/lib/ration/uninstall"
	done <"$tree/lib/ration/files"

	made_user=
	case $(id -u):$prefix in
	0:/usr | 0:/usr/local) id ration >/dev/null 2>&1 || make_user ;;
	esac

	say "installed $("$prefix/bin/ration" version)"
	say "  from      $url/$names, SHA-256 verified$signed"
	say "  to        $prefix/bin/ration${old:+, over $old}"
	if [ -n "$static" ]; then
		say "  static    it needs no C library, and cannot ask the driver (docs/install.md)"
	fi
	if [ -n "$made_user" ]; then
		say "  $made_user"
	fi
	say "  to undo   sh $prefix/lib/ration/uninstall"
	case :${PATH:-}: in
	*":$prefix/bin:"*) say "  try it    ration learn" ;;
	*) say "  try it    $prefix/bin/ration learn (and add $prefix/bin to PATH)" ;;
	esac
}

main
