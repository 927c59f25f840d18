#!/usr/bin/env bash
# Five new classes, five photos each, a pile of 500: the whole story on real pictures.
#
#   examples/add_classes.sh icons [FOLDER]    the model inside the package, no extra needed
#   examples/add_classes.sh cifar [FOLDER]    efficientnet-lite0 on photos cut from CIFAR-100, which
#                                             must be added: fewgraft data add cifar-fs --from PATH
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH="$here/../.venv/bin:$PATH" # the environment of this checkout, where there is one
what=${1:-icons}
work=${2:-build/add-classes-$what}
if [ -e "$work" ]; then
  echo "$work exists already: remove it, or name another folder" >&2
  exit 2
fi

case $what in
icons)
  python "$here/make_photos.py" icons "$work/photos"
  v1=icons
  ;;
cifar)
  python "$here/make_photos.py" cifar-fs "$work/photos"
  v1=$work/v1
  fewgraft base "$work/photos/old" --backbone efficientnet-lite0 --out "$v1"
  ;;
*)
  echo "icons or cifar?" >&2
  exit 2
  ;;
esac

cd "$work" && v1=${v1#"$work"/}
fewgraft learn "$v1" --new photos/new --out v2-without-pile --check photos/old_val
fewgraft learn "$v1" --new photos/new --unlabelled photos/pile --check photos/old_val --out v2
for version in v2-without-pile v2; do
  fewgraft predict "$version" photos/inbox --csv "$version.csv"
  python "$here/score_inbox.py" "$version.csv" photos/inbox.csv photos/new
done
