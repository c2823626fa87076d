#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts NVIDIA's and AMD's user space, as Debian packages it, into a folder: FOLDER/535, with some of its 32-bit libraries,
# FOLDER/tesla-470 and FOLDER/rocm; in FOLDER/programs what uses it.  FOLDER/intel has Intel's, with LLVM and clang, and
# FOLDER/fixes what doctor has installed.  Nothing is installed.
#
#   tests/driver/fetch.sh FOLDER
#
# The mirror and the keys are this machine's own; the component non-free must be there.  Left out are the kernel's parts, and
# the largest files: the ray tracer's, and compilers.
set -eu

# shellcheck source=tests/debian.sh
. "$(dirname "$0")/../debian.sh"
release=bookworm
folder=$1
# What another version of this script has fetched is fetched again.
version=$(cksum <"$0")
[ "$(cat "$folder/whole" 2>/dev/null)" != "$version" ] || exit 0
sets='535 tesla-470 rocm intel programs fixes libc-i386'
for set in $sets; do rm -rf "${folder:?}/$set"; mkdir -p "$folder/$set"; done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mirror=$(mirror)
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main contrib non-free" >"$scratch/sources"
mkdir -p "$scratch/state/lists/partial" "$scratch/cache/archives/partial"
apt() {
    program=$1
    shift
    "apt-$program" -q -q -o APT::Sandbox::User=root -o APT::Architectures::=i386 \
        -o Dir::Etc::SourceList="$scratch/sources" -o Dir::Etc::SourceParts=- \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
        -o Dir::State::Lists="$scratch/state/lists" -o Dir::Cache="$scratch/cache" "$@"
}
# The binary packages of a source.
of_source() {
    apt cache dumpavail | awk -v RS= -v FS='\n' -v source="$1" '
        { package = ""; from = ""
          for (i = 1; i <= NF; i++) {
              if ($i == "Architecture: i386") next
              if ($i ~ /^Package: /) package = substr($i, 10)
              if ($i ~ /^Source: /) { from = substr($i, 9); sub(/ .*/, "", from) }
          }
          if (from == source) print package }' | sort -u
}
large='kernel|nvoptix|rtcore|470-compiler|firmware|libopencl1|-detect$|nvidia-driver$|470-driver$|driver-full$|suspend|powerd'
# What their maintainer scripts call, and what they find beside them.
beside='glx-alternative-nvidia glx-alternative-mesa glx-diversions update-glx nvidia-installer-cleanup nvidia-support
    nvidia-persistenced nvidia-modprobe nvidia-kernel-common libnvidia-egl-gbm1 libnvidia-egl-wayland1
    nvidia-egl-common nvidia-vulkan-common nvidia-opencl-common'
# Those that need no large ones.
small='libcuda1 libnvidia-ml1 libnvidia-allocator1 libnvidia-encode1 libnvidia-opticalflow1 libnvidia-fbc1 libglx-nvidia0
    nvidia-vdpau-driver nvidia-vulkan-icd nvidia-egl-icd'
programs='xserver-xorg-core libepoxy0 libfontenc1 libpciaccess0 libpixman-1-0 libunwind8 libxcvt0 libxfont2 libxshmfence1
    vulkan-tools libvulkan1 clinfo ocl-icd-libopencl1 libvdpau1'
apt get update
[ -n "$(apt cache pkgnames libcuda1)" ] || { echo >&2 "fetch.sh: $mirror has no component non-free"; exit 1; }
of_source nvidia-graphics-drivers | grep -vE "$large|nvvm" >"$scratch/535"
of_source nvidia-graphics-drivers-tesla-470 | grep -vE "$large" >"$scratch/tesla-470"
for set in 535 tesla-470; do
    # shellcheck disable=SC2046,SC2086  # words
    (cd "$folder/$set" && apt get download $(cat "$scratch/$set") $beside)
done
# shellcheck disable=SC2046,SC2086  # words
(cd "$folder/535" && apt get download $(printf '%s:i386 ' $small))
# shellcheck disable=SC2086  # words
(cd "$folder/programs" && apt get download $programs)
(cd "$folder/fixes" && apt get download python3-pynvml)
(cd "$folder/libc-i386" && apt get download libc6:i386)
(cd "$folder/rocm" && apt get download rocminfo libhsa-runtime64-1 libhsakmt1 librocm-smi64-1 libdrm-amdgpu1 libelf1)
(cd "$folder/intel" && apt get download intel-opencl-icd libigc1 libigdfcl1 libigdgmm12 libopencl-clang14 libllvmspirvlib14 \
    libllvm14 libclang-cpp14)
echo "$version" >"$folder/whole"
