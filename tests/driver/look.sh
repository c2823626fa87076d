# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What libraries and programs say, on the host and in a container alike: each part begins with a line "-- NAME".
#
#   sh look.sh FOLDER MODULES GBM [FILE...]
#
# FOLDER: of the program `look` and of the lists of names; MODULES: of the X server; GBM: of libgbm's; FILE: libraries.
folder=$1 modules=$2 gbm=$3
shift 3
echo "-- names"
# shellcheck disable=SC2046  # words
"$folder/look" $(cat "$folder/names")
echo "-- files"
"$folder/look" "$@"
echo "-- twins"
# What one of 32 bits needs beside, such as X's libraries, no image has.
while read -r name; do
    /lib/ld-linux.so.2 --list "$name" 2>&1 | grep -q -F -e "$name: cannot open" -e "not found" || echo "found: $name"
done <"$folder/names32"
echo "-- manifests"
for file in $(find /usr/share /etc -name '*nvidia*.json' -o -name 'nvidia*.icd' | sort); do
    name=$(sed -n 's/.*"library_path" *: *"\([^"]*\)".*/\1/p' "$file")
    [ "${file%.icd}" = "$file" ] || read -r name <"$file"
    "$folder/look" "$name"
done
echo "-- nvidia-smi"
nvidia-smi 2>&1 || echo "ended with $?"
echo "-- cuInit"
"$folder/cuda"
echo "-- mps"
command -v nvidia-cuda-mps-control >/dev/null && echo get_server_list | nvidia-cuda-mps-control 2>&1
echo "-- clinfo"
clinfo 2>&1
# The layer is NVIDIA's, too.
echo "-- vulkaninfo"
__NV_PRIME_RENDER_OFFLOAD=1 VK_LOADER_DEBUG=driver,layer,error vulkaninfo --summary 2>&1 |
    grep -o -e 'Searching for ICD drivers named.*' -e 'Could not get .*' -e 'Inserted .*' -e 'Failed .*' -e '[A-Z_]*INCOMPATIBLE.*'
echo "-- vdpau"
LD_DEBUG=files VDPAU_DRIVER=nvidia "$folder/look" call libvdpau.so.1 vdp_device_create_x11 2>&1 |
    grep 'calling init' | grep -o 'libvdpau_nvidia[.]so'
echo "-- gbm"
LD_DEBUG=files GBM_BACKEND=nvidia-drm GBM_BACKENDS_PATH=$gbm "$folder/look" call libgbm.so.1 gbm_create_device 2>&1 |
    grep 'calling init' | grep -o 'nvidia-drm_gbm[.]so'
echo "-- xorg"
printf 'Section "Device"\n Identifier "it"\n Driver "nvidia"\nEndSection\n' >/tmp/xorg.conf
/usr/lib/xorg/Xorg :77 -config /tmp/xorg.conf -modulepath "$modules" -logfile /tmp/xorg.log -sharevts -novtswitch \
    -keeptty >/dev/null 2>&1
# The server's own GLX needs a libGL, which neither a bare host nor an image has.
sed -n '/libglx[.]so: libGL/d; s/^\[[^]]*\] (\(II\|EE\)) \(LoadModule.*nvidia.*\|NVIDIA.*\|Failed.*\|Module nvidia.*\|.*failed to map.*\)/\2/p' /tmp/xorg.log
