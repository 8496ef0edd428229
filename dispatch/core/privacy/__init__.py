"""Export and erase personal data of all slices, and manage retention."""
