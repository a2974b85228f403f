"""What a person types about the inventory, checked before anything is sent anywhere; a file for each subject."""
