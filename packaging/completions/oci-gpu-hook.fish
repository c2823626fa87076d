# SPDX-License-Identifier: Apache-2.0
# Made by "make completions", from the program and packaging/completions.
function __oci_gpu_hook_at --description 'Whether the words before the cursor lead to this command'
    set -l command
    set -l before
    set -l words (commandline -opc)
    set -e words[1]
    for word in $words
        # The value of an option names no command.
        if contains -- "$before" --bundle --capabilities --cdi-spec --config --container --format --hook --host-root --id --interval --nvml-timeout --output --pid
            set before
            continue
        end
        set before $word
        if contains -- (string join -- ' ' $command $word) 'plan' 'info' 'inventory' 'inventory refresh' 'inventory show' 'inventory watch' 'prepare' 'cdi' 'cdi generate' 'config' 'config show' 'config import' 'doctor' 'selinux' 'selinux status' 'selinux install' 'selinux remove' 'selinux explain'
            set -a command $word
        end
    end
    test "$command" = "$argv"
end

complete -c oci-gpu-hook -f
complete -c oci-gpu-hook -n '__oci_gpu_hook_at' -a plan -d 'Show what the hook would do for a bundle, and why'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at' -a info -d 'Show the driver, the GPUs and MIG devices, and the files by capability, as they are now'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at' -a inventory -d 'Prepare, show or keep fresh the saved inventory that hooks load at a container\'s start'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at' -a prepare -d 'Make the device nodes that a fresh boot lacks: unified memory, mode setting, MIG capabilities'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at' -a cdi -d 'Write a Container Device Interface spec of this host\'s GPUs'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at' -a config -d 'Show what the administrator has set, and translate what was set for NVIDIA\'s hook'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at' -a doctor -d 'Check every precondition on this host, in order of cause; or one running container'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at' -a selinux -d 'Show SELinux\'s state, install the policy modules, explain denials'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at plan' -l bundle -r -f -a '(__fish_complete_directories)' -d 'The container\'s bundle (its config.json lies in it)'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at plan' -l pid -r -f -d 'The container\'s process, if it exists already'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at plan' -l id -r -f -d 'The container\'s id, if it exists already'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at plan' -l format -r -f -a 'text json' -d 'How to print it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at plan' -l config -r -F -d 'The administrator\'s file'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at plan' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at plan' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at info' -l format -r -f -a 'text json' -d 'How to print it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at info' -l config -r -F -d 'The administrator\'s file'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at info' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at info' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory' -a refresh -d 'Survey the host, ask NVML what only it knows, and save the result for the hooks'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory' -a show -d 'Show the saved inventory, if it is still true'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory' -a watch -d 'Keep the saved inventory true: refresh it now, and whenever the driver or its devices change'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory refresh' -l nvml-timeout -r -f -d 'How long NVML may take to answer; 0 does not ask it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory refresh' -l format -r -f -a 'text json' -d 'How to print it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory refresh' -l config -r -F -d 'The administrator\'s file'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory refresh' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory refresh' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory show' -l format -r -f -a 'text json' -d 'How to print it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory show' -l config -r -F -d 'The administrator\'s file'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory show' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory show' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory watch' -l interval -r -f -d 'How often to look where udev tells nothing: a change of MIG devices makes no event'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory watch' -l cdi-spec -r -F -d 'Write a CDI spec to FILE at each refresh as well'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory watch' -l nvml-timeout -r -f -d 'How long NVML may take to answer; 0 does not ask it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory watch' -l config -r -F -d 'The administrator\'s file'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory watch' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at inventory watch' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at prepare' -l format -r -f -a 'text json' -d 'How to print it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at prepare' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at prepare' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at cdi' -a generate -d 'Write a spec of kind nvidia.com/gpu: devices by index, UUID and MIG name, and \'all\''
complete -c oci-gpu-hook -n '__oci_gpu_hook_at cdi' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at cdi generate' -l output -r -F -d 'Write to FILE, whole or not at all'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at cdi generate' -l format -r -f -a 'yaml json' -d '[default: by FILE\'s name, else yaml]'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at cdi generate' -l capabilities -r -f -d 'Driver capabilities of every container that uses the spec: CDI cannot ask each'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at cdi generate' -l hook -r -F -d 'Our hook\'s program'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at cdi generate' -l config -r -F -d 'The administrator\'s file'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at cdi generate' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at cdi generate' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at config' -a show -d 'Show every setting in force, and where it comes from'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at config' -a import -d 'Say what NVIDIA\'s config.toml means in our settings, key by key'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at config' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at config show' -l format -r -f -a 'text json' -d 'How to print it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at config show' -l config -r -F -d 'The administrator\'s file'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at config show' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at config import' -l output -r -F -d 'Write to FILE, whole or not at all'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at config import' -l format -r -f -a 'text json' -d 'How to print it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at config import' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at config import' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at config import' -f
complete -c oci-gpu-hook -n '__oci_gpu_hook_at doctor' -l format -r -f -a 'text json' -d 'How to print it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at doctor' -l container -r -f -d 'Examine a running container: by its id, the beginning of it, its name, or a process in it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at doctor' -l json -d 'The same as --format json'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at doctor' -l config -r -F -d 'The administrator\'s file'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at doctor' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at doctor' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux' -a status -d 'Show the mode, our modules, booleans and labels, and which containers can use GPUs now'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux' -a install -d 'Install both policy modules, and label the files that they name'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux' -a remove -d 'Remove both policy modules, and give their files the labels of before'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux' -a explain -d 'Explain the denials that concern containers and GPUs'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux status' -l format -r -f -a 'text json' -d 'How to print it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux status' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux status' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux install' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux install' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux remove' -l host-root -r -f -a '(__fish_complete_directories)' -d 'Read every path of the host below DIR'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux remove' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux explain' -l format -r -f -a 'text json' -d 'How to print it'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux explain' -s h -l help -d 'Show help and exit'
complete -c oci-gpu-hook -n '__oci_gpu_hook_at selinux explain' -F
