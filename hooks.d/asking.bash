# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2015,SC2034,SC2128,SC2154
# Whether a container may ask for a GPU.  Reads $config, its config.json, and $state; sets asks, to "" or "yes".
#
# Installation puts this text into oci-gpu-hook and oci-gpu-runtime, in place of the line that reads it: as a function, or
# as a file of its own, it would take each start 30 to 70 microseconds.  Text that could ask counts wherever it stands,
# and what is not understood is a doubt, which Python settles: "" must not come out if asking.py finds a request.  Only
# built-in commands are used, and no word of a container's is run or expanded.  LC_ALL must be C.

asks=yes
case $config$state in
*NVIDIA_* | *CUDA_VERSION* | *cdi.k8s.io* | *nvidia-container-devices* | *nvidia_driver_*) ;;
# Also an escape that could spell such text.  \u0026, \u003c and \u003e are how Go writes &, < and >.
*'\u00'*) case $config$state in *'\u00'[!23]* | *'\u002'[!6]* | *'\u003'[!CEce]*) ;; *) asks='' ;; esac ;;
*) asks='' ;;
esac
# A variable OCI_* may be a vendor's flag, or one of Oracle's tools: the vendors' files say which are flags.
[[ -n $asks ]] || case $config in *OCI_*)
    for vendor in /{etc,usr/local/share,usr/share}/oci-gpu-hook/vendors/*.json; do
        asks=yes
        # A folder that is there and cannot be listed looks empty.
        [[ ! -e ${vendor%/*} || -r ${vendor%/*} ]] || break
        if [[ -e $vendor ]]; then
            [[ -f $vendor ]] && mapfile -d '' -n 2 text <"$vendor" && [[ ${#text[@]} == 1 ]] || break
            case $text in *\\* | *'"activation_flag"'*'"activation_flag"'*) break ;; esac
            # Not ${text#*...}, which looks at what it has passed again and again: a long text would take seconds.
            before=${text%%'"activation_flag"'*}
            flag=${text:${#before}+17}
            case $flag in ':"'* | ': "'*) ;; *) break ;; esac
            flag=${flag#*'"'}
            flag=${flag%%'"'*}
            case $flag in OCI_*) ;; *) break ;; esac
            case $config in *"\"$flag="*) break ;; esac
        fi
        asks=''
    done ;;
esac
