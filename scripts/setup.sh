#!/usr/bin/env bash
# Before the first container: makes the folders that containers mount, and says in .env to whom results should belong.
# Changes nothing where all is as it should be. Writes nothing where something is in the way.
set -euo pipefail

FOLDERS=(results .snakemake data)
readonly WRITTEN=(results .snakemake) # by containers, whoever has made what is in them
readonly ENV_FILE=.env

refuse() {
  printf 'setup.sh: %s\n' "$1" >&2
  exit 1
}

# The user and group that containers run as. UID is bash's own name, so these are `user` and `group`.
find_owner() {
  user=$(id -u)
  group=$(id -g)
  if [[ $user == 0 ]]; then
    user=${SUDO_UID:-0}
    group=${SUDO_GID:-$(id -g "$user" 2>/dev/null || true)}
  fi
  if [[ $user == 0 ]]; then
    user=$(stat -c %u .)
    group=$(stat -c %g .)
  fi
  [[ $user =~ ^[0-9]+$ && $group =~ ^[0-9]+$ ]] || refuse "SUDO_UID=$user and SUDO_GID=$group must be numbers"
  [[ $user != 0 ]] ||
    refuse "containers do not run as root: run this as the user to whom results should belong"
}

require_usable_folder() {
  local folder=$1
  [[ -e $folder || -L $folder ]] || return 0
  [[ -d $folder ]] || refuse "$folder is no folder: move it away"
  [[ $(stat -L -c %u "$folder") == "$user" ]] ||
    refuse "$folder belongs to user $(stat -L -c %u "$folder"), not $user: sudo chown -R $user:$group $folder"
}

require_own_content() {
  local folder=$1 other
  [[ -d $folder ]] || return 0
  other=$(find -H "$folder" ! -uid "$user" -print -quit)
  [[ -z $other ]] ||
    refuse "$other belongs to user $(stat -c %u "$other"), not $user: sudo chown -R $user:$group $folder"
}

require_usable_env_file() {
  [[ -e $ENV_FILE || -L $ENV_FILE ]] || return 0
  [[ ! -L $ENV_FILE ]] || refuse "$ENV_FILE is a symbolic link, which is not written through: replace it by a file"
  [[ -f $ENV_FILE ]] || refuse "$ENV_FILE is no file: move it away"
  [[ -r $ENV_FILE ]] || refuse "$ENV_FILE cannot be read: chmod u+rw $ENV_FILE, after sudo chown $user:$group $ENV_FILE where it is not yours"
}

make_folder() {
  local folder=$1
  [[ ! -d $folder ]] || return 0
  mkdir -- "$folder"
  [[ $(id -u) != 0 ]] || chown "$user:$group" -- "$folder"
}

# .env with its lines for $1 set to $2, or one added; all else byte for byte.
with_line() {
  local name=$1 value=$2 file=$3
  local pattern="^[[:space:]]*(export[[:space:]]+)?${name}[[:space:]]*[=:].*$"
  if LC_ALL=C grep -aqE "$pattern" "$file"; then
    LC_ALL=C sed -i -E "s/$pattern/$name=$value/" "$file"
  else
    # A last line without its end gets one first.
    [[ ! -s $file || $(tail -c 1 "$file" | wc -l) == 1 ]] || printf '\n' >>"$file"
    printf '%s=%s\n' "$name" "$value" >>"$file"
  fi
}

# Made elsewhere and compared first, so that nothing here changes where nothing must.
write_env_file() {
  local made
  made=$(mktemp)
  temporary=""
  # shellcheck disable=SC2064  # the name of the one as it is now, of the other as it will be
  trap "rm -f -- '$made'"' "${temporary:-}"' EXIT
  [[ ! -e $ENV_FILE ]] || cat -- "$ENV_FILE" >"$made"
  with_line UID "$user" "$made"
  with_line GID "$group" "$made"
  if [[ -e $ENV_FILE ]] && cmp -s -- "$ENV_FILE" "$made"; then
    return 0
  fi
  temporary=$(mktemp "$ENV_FILE.XXXXXX")
  cat -- "$made" >"$temporary"
  if [[ -e $ENV_FILE ]]; then
    chmod --reference="$ENV_FILE" -- "$temporary"
  else
    chmod 644 -- "$temporary"
  fi
  [[ $(id -u) != 0 ]] || chown "$user:$group" -- "$temporary"
  mv -fT -- "$temporary" "$ENV_FILE"
}

unset CDPATH
cd -P -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."
find_owner
require_usable_env_file
for folder in "${FOLDERS[@]}"; do
  require_usable_folder "$folder"
done
for folder in "${WRITTEN[@]}"; do
  require_own_content "$folder"
done
for folder in "${FOLDERS[@]}"; do
  make_folder "$folder"
done
write_env_file
echo "setup.sh: ${FOLDERS[*]} are there, and $ENV_FILE says UID=$user and GID=$group"
