"""Track 3: the same kernel on any GPU, from GLSL over SPIR-V to a dispatch on Vulkan."""
